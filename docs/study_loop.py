"""Carry a study out, and time further sessions, until none would decide more or until they would
take more minutes than are left. The program reads nothing but JSON.

    python docs/study_loop.py MINUTES FOLDER KEY=VALUE …
"""

import json
import subprocess
import sys

minutes = float(sys.argv[1])
command = ["python", "-m", "nocap.study", *sys.argv[2:], "--json"]
while True:
    done = subprocess.run([sys.executable, *command[1:]], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)  # what is wrong is on stderr
    answer = json.loads(done.stdout)
    for claim in answer["claims"]:
        print(f"{claim['id']}: {claim['word']}")
    following = answer["next"]
    if following is None or following["minutes"] > minutes:
        break
    minutes -= following["minutes"]
    command = following["command"]
print(f"next: {following}; {minutes:.1f} minutes left")
