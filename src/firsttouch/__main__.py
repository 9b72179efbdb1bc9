"""`python -m firsttouch` is `firsttouch`."""

from firsttouch.cli import main

if __name__ == "__main__":
    main()
