"""What a call asks for and gets: its prompts, its requests, their handles, and what is known of each."""
