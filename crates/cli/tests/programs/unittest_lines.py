# Runs the tests of one module of CPython's own and writes what becomes of each, a line a test.
#   unittest_lines.py RESULTS LIMIT MODULE [only|but NAME...]
# RESULTS is appended to: `start NAME`, then `passed|skipped|failed NAME [why]`, and `end` after the last. A test that takes
# longer than LIMIT seconds ends the process, as one does that crashes: whoever reads the file sees a start alone.
import faulthandler
import os
import sys
import unittest

results, limit, module = sys.argv[1], float(sys.argv[2]), sys.argv[3]
choice, names = (sys.argv[4], set(sys.argv[5:])) if len(sys.argv) > 4 else ("but", set())
lines = os.open(results, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
complaints = os.fdopen(os.dup(2), "w")

from test import support

# Nothing here reaches the Internet.
support.use_resources = ["cpu", "network", "subprocess", "walltime"]
# A machine that is busy with other things is no fault of what is tested.
support.LOOPBACK_TIMEOUT = 30.0


def name_of(test):
    return test.id().replace(" ", "_")


def say(*words):
    os.write(lines, (" ".join(words).replace("\n", " ") + "\n").encode())


class Lines(unittest.TestResult):
    def startTest(self, test):
        super().startTest(test)
        self.worst = None
        say("start", name_of(test))
        faulthandler.dump_traceback_later(limit, exit=True, file=complaints)

    def stopTest(self, test):
        super().stopTest(test)
        faulthandler.cancel_dump_traceback_later()
        say(*(self.worst or ["passed"])[:1], name_of(test), *(self.worst or [])[1:])

    def bad(self, test, error):
        complaints.write(f"---- {name_of(test)}\n{self._exc_info_to_string(error, test)}\n")
        complaints.flush()
        why = f"{error[0].__name__}: {error[1]}"[:160]
        if isinstance(test, unittest.case.TestCase):
            self.worst = ["failed", why]
        elif type(test).__name__ == "_SubTest":
            self.worst = ["failed", why]
        else:
            # What sets a class or a module up.
            say("failed", name_of(test), why)

    def addError(self, test, error):
        self.bad(test, error)

    def addFailure(self, test, error):
        self.bad(test, error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.bad(subtest, error)

    def addSkip(self, test, reason):
        if not isinstance(test, unittest.case.TestCase):
            say("skipped", name_of(test), reason)
        else:
            self.worst = self.worst or ["skipped", reason]

    def addExpectedFailure(self, test, error):
        pass

    def addUnexpectedSuccess(self, test):
        self.worst = ["failed", "unexpected success"]


def chosen(suite):
    kept = unittest.TestSuite()
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            kept.addTest(chosen(test))
        elif (name_of(test) in names) == (choice == "only"):
            kept.addTest(test)
    return kept


try:
    suite = unittest.defaultTestLoader.loadTestsFromName(module)
except unittest.SkipTest as reason:
    say("skipped", module, str(reason))
    suite = unittest.TestSuite()
chosen(suite).run(Lines())
say("end")
# Threads that a test has left behind do not keep it.
complaints.flush()
os._exit(0)
