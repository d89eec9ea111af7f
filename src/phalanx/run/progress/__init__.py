"""The progress display of a run: plain lines, a live line on a terminal, and a watchdog."""
