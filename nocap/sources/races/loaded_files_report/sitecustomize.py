"""Python imports this at its start where PYTHONPATH has this folder. At its end it tells which
files it had loaded below NOCAP_TOP and not below NOCAP_TREE: two refs that both import one
installed copy would be compared with themselves."""

import atexit
import importlib
import os
import sys


def tell() -> None:
    top, tree = (
        os.path.join(os.path.realpath(os.environ[name]), "") for name in ("NOCAP_TOP", "NOCAP_TREE")
    )
    files = {
        os.path.realpath(file)
        for module in list(sys.modules.values())
        if (file := getattr(module, "__file__", None))
    }
    outside = sorted(file for file in files if file.startswith(top) and not file.startswith(tree))
    if outside:
        with open(os.environ["NOCAP_LOADED"], "a") as report:
            report.write("\n".join(outside) + "\n")


if "NOCAP_LOADED" in os.environ:
    atexit.register(tell)
# then the sitecustomize that this one hides is found
sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
own = sys.modules.pop("sitecustomize")
try:
    importlib.import_module("sitecustomize")
except ModuleNotFoundError:
    sys.modules["sitecustomize"] = own  # Python asks for it once more, and says that there is none
