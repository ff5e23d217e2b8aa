// Runs the vectors on a2core under Pyodide, which comes whole from its npm package: `make pyodide`.

import { readFileSync, readdirSync, statSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { loadPyodide, version } from "pyodide";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));

// Copied, not mounted: nothing else of the project is there to lean on, and no bytecode is left behind.
const COPIED = ["a2core", "tests/vectors.py", "tests/vector_kinds", "tests/vectors"];

const RUN = `
import runpy
import sys

sys.argv[1:] = ["tests/vectors"]
status = 0
try:
    runpy.run_module("tests.vectors", run_name="__main__")
except SystemExit as ending:
    status = ending.code
status
`;

function copy(fs, path) {
  if (!statSync(ROOT + path).isDirectory()) {
    fs.writeFile(path, readFileSync(ROOT + path));
    return;
  }
  fs.mkdirTree(path);
  for (const name of readdirSync(ROOT + path)) {
    if (name !== "__pycache__") copy(fs, `${path}/${name}`);
  }
}

const python = await loadPyodide({ stdout: console.log, stderr: console.error });
console.log(`Pyodide ${version}, Python ${python.runPython("import platform; platform.python_version()")}`);
python.FS.mkdir("tests");
for (const path of COPIED) copy(python.FS, path);
process.exitCode = python.runPython(RUN);
