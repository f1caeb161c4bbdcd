"""Runs a job's script as the main module, with `mycora` at hand and tracebacks that begin in the script."""

import os
import sys


def main():
    script = sys.argv[1]
    # Ours first, then the job's own directory, as for any script that is started by its path.
    sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.getcwd()]
    sys.argv = [script]
    sys.dont_write_bytecode = True
    main_module = type(sys)("__main__")
    main_module.__file__ = script
    main_module.__builtins__ = __builtins__
    sys.modules["__main__"] = main_module
    try:
        with open(script, encoding="utf-8") as file:
            code = compile(file.read(), script, "exec")
        exec(code, main_module.__dict__)
    except Exception as error:
        import traceback

        # Without the frame of this function.
        trace = error.__traceback__.tb_next
        traceback.print_exception(type(error), error, trace)
        sys.exit(1)


main()
