"""The model: a small operating system's memory manager, one file a mechanism. Read `fault.py` first."""
