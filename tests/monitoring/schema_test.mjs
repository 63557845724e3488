// The dashboards against the types of Grafana's own package @grafana/schema: each
// file, and each panel's options and field configuration, as literals that the
// TypeScript compiler checks. Nothing may be missing, unknown or of another type.
//
// Run by run_schema, which installs the packages.
import assert from "node:assert";
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import test from "node:test";

const packages = process.env.BATON_NPM_DIR;
const dashboards = process.env.BATON_DASHBOARDS;
const ts = createRequire(join(packages, "x.js"))("typescript");
const schema = join(packages, "node_modules/@grafana/schema/dist/esm");
const here = dirname(fileURLToPath(import.meta.url));

const PANELS = { timeseries: "TimeSeries", stat: "Stat", heatmap: "Heatmap",
  table: "Table" };

// JSON has the values of enums, which literals do not match: as unions they do.
function withoutEnums(text) {
  return text.replace(/(export )?(?:declare )?enum (\w+) \{([^}]*)\}/g,
    (_, exported, name, body) => {
      const values = [...body.matchAll(/=\s*("[^"]*"|-?\d+)/g)].map((m) => m[1]);
      return `${exported ?? ""}type ${name} = ${values.join(" | ")};`;
    });
}

function panelImports() {
  return Object.entries(PANELS).map(([kind, name]) => {
    const folder = `${schema}/raw/composable/${kind}/panelcfg/x`;
    return `import type * as ${name} from ` +
      `"${folder}/${name}PanelCfg_types.gen";\n`;
  }).join("");
}

// What the compiler has against `source`, by line.
function complaints(source) {
  const file = join(here, "board.ts");
  const options = { strict: true, noEmit: true, skipLibCheck: true, types: [],
    target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext,
    moduleResolution: ts.ModuleResolutionKind.Bundler,
    baseUrl: packages, paths: { "@grafana/schema": [`${schema}/index.d.mts`] } };
  const host = ts.createCompilerHost(options);
  const { readFile, fileExists } = host;
  const text = (name) => (name === file ? source : readFile.call(host, name));
  host.fileExists = (name) => name === file || fileExists.call(host, name);
  host.readFile = text;
  host.getSourceFile = (name, version) => {
    const content = text(name);
    return content === undefined ? undefined : ts.createSourceFile(name,
      name.startsWith(schema) ? withoutEnums(content) : content, version);
  };
  const program = ts.createProgram([file], options, host);
  return ts.getPreEmitDiagnostics(program).map((one) => {
    const message = ts.flattenDiagnosticMessageText(one.messageText, " ");
    if (one.file === undefined) return message;
    const { line } = one.file.getLineAndCharacterOfPosition(one.start);
    return `${source.split("\n")[line].trim()}: ${message}`;
  });
}

// Without what annotations of Prometheus have besides those of all sources.
function withoutOwnFields({ expr, step, titleFormat, textFormat, ...rest }) {
  assert.ok(expr && step && titleFormat && textFormat);
  return rest;
}

function sourceOf(board) {
  const annotations = { list: board.annotations.list.map(withoutOwnFields) };
  const lines = [panelImports(),
    `import type { Dashboard, Panel, RowPanel } from ` +
    `"${schema}/raw/dashboard/x/dashboard_types.gen";\n`,
    `export const board: Dashboard = ${JSON.stringify(
      { ...board, annotations, panels: [] }, null, 1)};\n`];
  board.panels.forEach((panel, i) => {
    const type = panel.type === "row" ? "RowPanel" : "Panel";
    lines.push(`// ${panel.title}\n`, `export const panel${i}: ${type} = ` +
      `${JSON.stringify(panel, null, 1)};\n`);
    if (panel.type === "row") return;
    const kind = PANELS[panel.type];
    assert.ok(kind, `${panel.title}: type ${panel.type}`);
    lines.push(
      `export const options${i}: Partial<${kind}.Options> = ` +
      `${JSON.stringify(panel.options, null, 1)};\n`);
    if (panel.type === "stat") return;  // has no fields of its own
    lines.push(
      `export const custom${i}: Partial<${kind}.FieldConfig> = ` +
      `${JSON.stringify(panel.fieldConfig.defaults.custom, null, 1)};\n`);
  });
  return lines.join("");
}

const boards = readdirSync(dashboards).filter((name) => name.endsWith(".json"));
assert.ok(boards.length >= 4);

for (const name of boards) {
  test(`${name} is as Grafana's types have it`, () => {
    const board = JSON.parse(readFileSync(join(dashboards, name), "utf8"));
    assert.deepStrictEqual(complaints(sourceOf(board)), []);
  });
}

test("what is wrong is noticed", () => {
  const board = JSON.parse(readFileSync(join(dashboards, boards[0]), "utf8"));
  const lines = board.panels.find((panel) => panel.type === "timeseries");
  lines.fieldConfig.defaults.custom.drawStyle = "lines";
  lines.options.legend.placment = "bottom";
  board.refresh = 10;
  assert.strictEqual(complaints(sourceOf(board)).length >= 3, true);
});
