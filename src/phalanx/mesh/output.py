"""Output to a terminal or a log, which is never worth a run: text that cannot be written is lost.

A disk may be full, a pipe closed, a terminal gone, or standard error closed or replaced by an object that raises. All
text of Phalanx passes through the streams here, and all its warnings through `warn`.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def never_fatal() -> Iterator[None]:
    """Pass over an error of output in a `with` block: streams that users replace raise errors of any class."""
    with suppress(Exception):
        yield


class Output:
    """Standard output or standard error as it is at the time; text that cannot be written is lost.

    Args:
        name: "stdout" or "stderr", the name in `sys`.
        stream: the stream in its place; None for that of `sys`.
    """

    def __init__(self, name: str, stream: Any = None):
        self._name = name
        self._replaced = stream

    @property
    def _stream(self) -> Any:
        """The stream; None where Python has none, in a process that began with it closed."""
        stream = getattr(sys, self._name) if self._replaced is None else self._replaced
        return getattr(stream, "rich_proxied_file", stream)  # Rich's own writes to this one

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "rich_proxied_file":
            raise AttributeError(name)
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        """Return True if the stream is a terminal."""
        with never_fatal():
            return bool(self._stream.isatty())
        return False

    def write(self, text: str) -> int:
        """Write text; characters that the stream's encoding lacks are escaped."""
        if not isinstance(text, str):  # Click asks so what a stream takes
            raise TypeError(f"write() takes text, not {type(text).__name__}")
        with never_fatal():
            try:
                self._stream.write(text)
            except UnicodeEncodeError as error:
                self._stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
            return len(text)
        self._discard()
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write the text that the stream holds."""
        with never_fatal():
            self._stream.flush()
            return
        self._discard()

    def say(self, line: str) -> None:
        """Write a line at once."""
        self.write(f"{line}\n")
        self.flush()

    def _discard(self) -> None:
        """Discard the text that the stream holds: the interpreter would end with an error when it cannot write it."""
        with never_fatal():
            number = self._stream.fileno()
            inherits = os.get_inheritable(number)
            before = os.dup(number)
            null = os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(null, number, inherits)
                self._stream.flush()
            finally:
                os.dup2(before, number, inherits)
                os.close(before)
                os.close(null)


STDOUT = Output("stdout")
STDERR = Output("stderr")


def warn(message: str, stacklevel: int = 1) -> None:
    """Issue a UserWarning as `warnings.warn` does; one that cannot be written is lost."""
    with suppress(OSError, ValueError):  # of the stream; a warning that a filter raises is neither
        warnings.warn(message, stacklevel=stacklevel + 1)
    STDERR.flush()


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Guard standard output and standard error in a `with` block, also for other libraries and the user's files."""
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    with open(os.devnull, "w", encoding="utf-8") as null:
        guarded = {name: Output(name, null if stream is None else stream) for name, stream in before.items()}
        try:
            _replace(guarded)
            yield
        finally:
            for output in guarded.values():
                output.flush()
            _replace(before)


def _replace(streams: Mapping[str, Any]) -> None:
    for name, stream in streams.items():
        setattr(sys, name, stream)
