"""``command.py MODULE …``: a command of a stand-in. Its module is imported, so that Python keeps it compiled."""

import sys

__import__(sys.argv.pop(1)).run()
