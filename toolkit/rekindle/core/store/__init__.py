"""The storage that outlives the process: private, sealed entries on disk, and snapshots that are made of them."""
