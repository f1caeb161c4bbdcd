"""Runs a job's script as the main module, with `mycora` at hand and tracebacks that begin in the script."""

import builtins
import os
import sys

# Alone in its directory: nothing else of ours can be imported, or hides what a script wants to import.
LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")


def places():
    """Directories that modules of the job come from: its own, then those of its `PYTHONPATH`."""
    # The interpreter is isolated, so that it does not read the variable itself.
    named = os.environ.get("PYTHONPATH")
    others = named.split(os.pathsep) if named else []
    return [os.getcwd(), *map(os.path.abspath, others)]


def run(script):
    """Runs the script at this path and gives what to exit with, as the interpreter itself would."""
    # Ours first, then the job's, as for any script that is started by its path.
    sys.path[:0] = [LIBRARY, *places()]
    sys.argv = [script]
    main_module = type(sys)("__main__")
    main_module.__file__ = script
    main_module.__builtins__ = builtins
    sys.modules["__main__"] = main_module
    try:
        with open(script, "rb") as file:
            code = compile(file.read(), script, "exec", dont_inherit=True)
        exec(code, main_module.__dict__)
    except SystemExit as request:
        return exit_code(request)
    except BaseException as error:
        # Without the frame of this function.
        error.__traceback__ = error.__traceback__.tb_next
        report(error)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def exit_code(request):
    """What `sys.exit(code)` means."""
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return request.code & 0xFF
    print(request.code, file=sys.stderr)
    return 1


def report(error):
    """Shows an exception that nothing caught; a script may have put its own hook in place."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:
        sys.__excepthook__(type(error), error, error.__traceback__)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
