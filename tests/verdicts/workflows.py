"""Runs the shell steps of the workflow examples of docs/ci.md, and of the GitHub action, as the runners do.

Usage: workflows.py PAGE github|gitlab|jenkins, or workflows.py ACTION.yml action [NAME=VALUE of an input]…

Prints a line per step: its exit code and its command, or its name. Exits with the workflow's own verdict. Steps that use other
actions, installations and plug-ins are printed and not run. Needs PyYAML. Deliberately absent: expressions other than those that occur.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml


def examples(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def github_steps(page):
    """(command, runs also after a failure) of each step of the example without the action."""
    steps = next(steps for steps in map(yaml.safe_load, examples(page, "yaml")) if "run" in steps[0])
    return [(step["run"], step.get("if") == "always()") for step in steps]


def gitlab_steps(page):
    job = next(value["gpu-leaks"] for value in map(yaml.safe_load, examples(page, "yaml")) if "gpu-leaks" in value)
    print("left out", job["before_script"], flush=True)
    return [(line, False) for line in job["script"]] + [(line, True) for line in job["after_script"]]


def jenkins_steps(page):
    before, after = examples(page, "groovy")[0].split("post {")
    shell = lambda text: re.findall(r"^\s+sh '(.*)'$", text, re.MULTILINE)
    return [(line, False) for line in shell(before)] + [(line, True) for line in shell(after)]


def bash(script, environment=None):
    # GitHub's shell; those of GitLab and Jenkins are equivalent for these steps.
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, env=environment).returncode


def run(steps):
    failed = False
    for command, always in steps:
        if failed and not always:
            print("skipped", command, flush=True)
            continue
        code = bash(command)
        print(code, command, flush=True)
        failed |= code != 0
    return failed


class Action:
    """A composite action that runs."""

    def __init__(self, path, given):
        self.action = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        unknown = given.keys() - self.action["inputs"].keys()
        assert not unknown, unknown
        self.inputs = {name: given.get(name, declared["default"]) for name, declared in self.action["inputs"].items()}
        self.outputs = {}
        self.failed = False

    def value(self, expression):
        expression = expression.strip()
        if re.fullmatch(r"inputs\.[\w-]+", expression):
            return self.inputs[expression.removeprefix("inputs.")]
        found = re.fullmatch(r"steps\.([\w-]+)\.outputs\.([\w-]+)", expression)
        assert found, expression
        return self.outputs.get(found[1], {}).get(found[2], "")

    def expanded(self, text):
        return re.sub(r"\$\{\{(.*?)\}\}", lambda found: self.value(found[1]), str(text))

    def is_wanted(self, condition):
        condition = condition.removeprefix("${{").removesuffix("}}").strip()
        parts = [part.strip() for part in condition.split("&&")]
        if "!cancelled()" in parts:
            parts.remove("!cancelled()")
        elif self.failed:
            return False
        for part in filter(None, parts):
            name, difference = re.fullmatch(r"(\S+) != '(.*)'", part).groups()
            if self.value(name) == difference:
                return False
        return True

    def step(self, step):
        if not self.is_wanted(step.get("if", "")):
            print("skipped", step["name"], flush=True)
            return
        if "uses" in step:
            print("left out", step["name"], {name: self.expanded(value) for name, value in step["with"].items()}, flush=True)
            return
        assert "${{" not in step["run"], "inputs go through env"
        output = Path(os.environ["RUNNER_TEMP"]) / "outputs"
        output.write_text("")
        environment = {name: self.expanded(value) for name, value in step.get("env", {}).items()}
        code = bash(step["run"], {**os.environ, **environment, "GITHUB_OUTPUT": str(output)})
        self.outputs[step.get("id")] = dict(line.split("=", 1) for line in output.read_text().splitlines())
        self.failed |= code != 0
        print(code, step["name"], flush=True)

    def run(self):
        for step in self.action["runs"]["steps"]:
            self.step(step)
        for name, output in self.action["outputs"].items():
            print(f"output {name}={self.expanded(output['value'])}", flush=True)
        return self.failed


def main():
    path, runner, *given = sys.argv[1:]
    if runner == "action":
        return Action(path, dict(pair.split("=", 1) for pair in given)).run()
    page = Path(path).read_text(encoding="utf-8")
    steps = {"github": github_steps, "gitlab": gitlab_steps, "jenkins": jenkins_steps}[runner](page)
    assert len(steps) >= 3, steps
    return run(steps)


if __name__ == "__main__":
    sys.exit(main())
