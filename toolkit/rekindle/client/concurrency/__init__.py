"""Operations, objects and loops for tasks and for blocking threads."""
