// Checks manifests against the types and schemas that the packages
// kubernetes-models and @kubernetes-models/* have from the OpenAPI documents of
// Kubernetes and from the definitions of custom resources.
import { join } from "node:path";
import ts from "typescript";

const PACKAGES = {
  "cert-manager.io": "@kubernetes-models/cert-manager",
  "keda.sh": "@kubernetes-models/keda",
  "monitoring.coreos.com": "@kubernetes-models/prometheus-operator",
};

function moduleOf(manifest) {
  const [group, version] = manifest.apiVersion.includes("/")
    ? manifest.apiVersion.split("/")
    : ["", manifest.apiVersion];
  const from = PACKAGES[group] ?? "kubernetes-models";
  return [from, group, version, manifest.kind].filter((p) => p !== "").join("/");
}

// Fields that do not exist, and values of another type or beyond an enumeration:
// what the compiler says of the manifests as literals. `named`: name to manifest.
export function typeProblems(named, folder) {
  const lines = [];
  const places = [];
  for (const [name, manifest] of named) {
    const n = lines.length;
    lines.push(
      `import type { I${manifest.kind} as T${n} } from ${JSON.stringify(moduleOf(manifest))};` +
        ` export const m${n}: T${n} = ${JSON.stringify(manifest)};`,
    );
    places.push(name);
  }
  const file = join(folder, "manifests.ts");
  const options = {
    strict: true,
    noEmit: true,
    skipLibCheck: true,
    types: [],
    target: ts.ScriptTarget.ES2022,
    module: ts.ModuleKind.ESNext,
    moduleResolution: ts.ModuleResolutionKind.Bundler,
  };
  const host = ts.createCompilerHost(options);
  const readFile = host.readFile;
  const getSourceFile = host.getSourceFile;
  const text = lines.join("\n");
  host.readFile = (path) => (path === file ? text : readFile(path));
  host.fileExists = ((exists) => (path) => path === file || exists(path))(host.fileExists);
  host.getSourceFile = (path, ...rest) =>
    path === file
      ? ts.createSourceFile(path, text, ts.ScriptTarget.ES2022)
      : getSourceFile(path, ...rest);
  const program = ts.createProgram([file], options, host);
  return ts.getPreEmitDiagnostics(program).map((diagnostic) => {
    const message = ts.flattenDiagnosticMessageText(diagnostic.messageText, " ");
    if (diagnostic.file?.fileName !== file) return message;
    const { line } = diagnostic.file.getLineAndCharacterOfPosition(diagnostic.start);
    return `${places[line]}: ${message}`;
  });
}

// Fields that are missing, and values out of their ranges and formats.
export async function schemaProblems(named) {
  const problems = [];
  for (const [name, manifest] of named) {
    const { [manifest.kind]: Model } = await import(moduleOf(manifest));
    try {
      new Model(manifest).validate();
    } catch (error) {
      problems.push(`${name}: ${error.message}`);
    }
  }
  return problems;
}
