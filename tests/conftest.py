"""Tests send Ctrl-C: a shell that started them in the background must not have taught them to ignore it."""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
