# Runs the tests of one module of CPython's test suite and writes the result of each in a line.
#   unittest_lines.py RESULTS LIMIT MODULE [only|but NAME...]
# Lines appended to RESULTS: `start NAME`, then `passed|skipped|failed NAME [why]`, and `end` after the last. A test
# that takes longer than LIMIT seconds, or crashes, ends the process: then the file has only its `start`.
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
# A longer timeout, as the machine may be busy.
support.LOOPBACK_TIMEOUT = 30.0


def name_of(test):
    return test.id().replace(" ", "_")


def record(*words):
    os.write(lines, (" ".join(words).replace("\n", " ") + "\n").encode())


class Lines(unittest.TestResult):
    def startTest(self, test):
        super().startTest(test)
        self.worst = None
        record("start", name_of(test))
        faulthandler.dump_traceback_later(limit, exit=True, file=complaints)

    def stopTest(self, test):
        super().stopTest(test)
        faulthandler.cancel_dump_traceback_later()
        record(*(self.worst or ["passed"])[:1], name_of(test), *(self.worst or [])[1:])

    def record_failure(self, test, error):
        complaints.write(f"---- {name_of(test)}\n{self._exc_info_to_string(error, test)}\n")
        complaints.flush()
        why = f"{error[0].__name__}: {error[1]}"[:160]
        if isinstance(test, unittest.case.TestCase):
            self.worst = ["failed", why]
        elif type(test).__name__ == "_SubTest":
            self.worst = ["failed", why]
        else:
            # The set-up of a class or a module has failed.
            record("failed", name_of(test), why)

    def addError(self, test, error):
        self.record_failure(test, error)

    def addFailure(self, test, error):
        self.record_failure(test, error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.record_failure(subtest, error)

    def addSkip(self, test, reason):
        if not isinstance(test, unittest.case.TestCase):
            record("skipped", name_of(test), reason)
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
    record("skipped", module, str(reason))
    suite = unittest.TestSuite()
chosen(suite).run(Lines())
record("end")
# Threads that a test has left behind must not keep the process alive.
complaints.flush()
os._exit(0)
