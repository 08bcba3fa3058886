// Sends a span from a web page, as a web application does, and tells the page's own server how it went.
// The page's query says how: kind=http|proto with the OpenTelemetry SDK, kind=beacon by itself; url: where to.
import { OTLPTraceExporter as HttpExporter } from "@opentelemetry/exporter-trace-otlp-http";
import { OTLPTraceExporter as ProtoExporter } from "@opentelemetry/exporter-trace-otlp-proto";
import { BatchSpanProcessor, WebTracerProvider } from "@opentelemetry/sdk-trace-web";

const query = new URLSearchParams(location.search);
const url = query.get("url");

async function sendSpan(Exporter) {
  const headers = query.get("key") ? { "x-api-key": query.get("key") } : {};
  const exporter = new Exporter({ url, headers, timeoutMillis: 2000 });
  const results = [];
  const send = exporter.export.bind(exporter);
  exporter.export = (spans, done) => send(spans, (result) => (results.push(result.error?.message ?? "sent"), done(result)));
  const provider = new WebTracerProvider({ spanProcessors: [new BatchSpanProcessor(exporter)] });
  provider.getTracer("page", "1").startSpan("click", { attributes: { page: "grüß" } }).end();
  await provider.shutdown();
  return results.join();
}

async function beacon() {
  const body = new Blob([query.get("body")], { type: "application/json" });
  return navigator.sendBeacon(url, body) ? "queued" : "refused";
}

async function run() {
  switch (query.get("kind")) {
    case "http":
      return sendSpan(HttpExporter);
    case "proto":
      return sendSpan(ProtoExporter);
    default:
      return beacon();
  }
}

run()
  .catch((error) => `failed: ${error}`)
  .then((result) => fetch(`/done?result=${encodeURIComponent(result)}`));
