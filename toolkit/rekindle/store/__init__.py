"""What outlives the process: private, sealed entries on disk, and the snapshots that are made of them."""
