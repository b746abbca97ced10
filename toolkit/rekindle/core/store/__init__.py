"""Storage across processes: private, sealed entries on disk, and snapshots of the prefix cache."""
