"""The log of a server: JSON lines on standard error, written by a thread of its own, so that no request waits for who
reads them. Not here: what is logged."""

import json
import logging
import os
import sys
import threading
import time
from collections import deque
from datetime import UTC, datetime

MOST = 10_000  # lines that wait; more of them are lost, and counted
PAUSE = 0.05  # seconds in which lines come together: a thread that is woken by each of them would hold up the others
RETRY = 0.5  # seconds, after a write that failed
_AT_ONCE = 100  # lines
PATIENCE = 1.0  # seconds, at the end, for who does not read


class _Lines(logging.Formatter):
    """One JSON object for each record."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": at, "level": record.levelname.lower(), "message": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


class LogHandler(logging.Handler):
    """Keeps lines until they are written. Where a reader is too slow for MOST of them, later ones are lost, and the
    next line says how many."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(_Lines())
        self._lines: deque[str] = deque()
        self._lost = 0
        self._some = threading.Event()
        try:
            self._descriptor = sys.stderr.fileno()
        except (AttributeError, OSError):  # a stand-in, such as a notebook's
            self._descriptor = 2
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Without waiting."""
        if len(self._lines) >= MOST:
            self._lost += 1
            return
        if self._lost:
            lost, self._lost = self._lost, 0
            said = {"levelname": "WARNING", "msg": "lines of the log were lost", "fields": {"lost": lost}}
            self._lines.append(self.format(logging.makeLogRecord(said)))
        try:
            self._lines.append(self.format(record))
        except Exception:
            self.handleError(record)  # as the handlers of the library do: no request fails for its log
        self._some.set()

    def flush(self) -> None:
        """Waits until all is written, for PATIENCE at most."""
        end = time.monotonic() + PATIENCE
        while self._lines and time.monotonic() < end:
            time.sleep(PAUSE / 5)

    def _write(self) -> None:
        """Past the buffer of `sys.stderr`, which would be locked at the end of the process, should nobody read."""
        while self._some.wait():
            time.sleep(PAUSE)
            self._some.clear()
            while count := min(len(self._lines), _AT_ONCE):
                content = "".join(self._lines[number] + "\n" for number in range(count)).encode()
                while content:
                    try:
                        content = content[os.write(self._descriptor, content) :]
                    except OSError:  # a full disk, or nobody there: lines wait, as for a slow reader
                        time.sleep(RETRY)
                for _ in range(count):
                    self._lines.popleft()


def json_log() -> logging.Logger:
    """The log of a server, and of uvicorn. No text that was asked about is in it."""
    handler = LogHandler()
    for name in ("uvicorn", "bertworks.serve"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    return logging.getLogger("bertworks.serve")
