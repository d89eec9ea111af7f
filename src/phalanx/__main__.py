"""`python -m phalanx`: the command, where its name is not on the path."""

from phalanx.cli import main

if __name__ == "__main__":
    main()
