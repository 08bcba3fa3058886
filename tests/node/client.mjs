// Sends telemetry with the OpenTelemetry SDK for Node, as an application does.
// Usage: node client.mjs <http|proto|grpc> <endpoint> [gzip]
// For http and proto the endpoint is a base URL. Prints one line per failed export.
import { diag, DiagLogLevel, SpanKind, SpanStatusCode } from "@opentelemetry/api";
import { SeverityNumber } from "@opentelemetry/api-logs";
import { resourceFromAttributes } from "@opentelemetry/resources";
import { BatchLogRecordProcessor, LoggerProvider } from "@opentelemetry/sdk-logs";
import { MeterProvider, PeriodicExportingMetricReader } from "@opentelemetry/sdk-metrics";
import { BatchSpanProcessor, NodeTracerProvider } from "@opentelemetry/sdk-trace-node";

const [protocol, endpoint, compression = "none"] = process.argv.slice(2);
const say = (...words) => console.log("SDK:", ...words);
diag.setLogger({ error: say, warn: say, info() {}, debug() {}, verbose() {} }, DiagLogLevel.WARN);

async function exporter(signal, name) {
  const path = { trace: "traces", metrics: "metrics", logs: "logs" }[signal];
  const { [name]: Exporter } = await import(`@opentelemetry/exporter-${signal}-otlp-${protocol}`);
  const url = protocol === "grpc" ? endpoint : `${endpoint}/v1/${path}`;
  return new Exporter({ url, compression });
}

const resource = resourceFromAttributes({ "service.name": "shop", "host.name": "büro-1" });
// What JavaScript can say and JSON can't: each of these is odd on the wire of OTLP/JSON.
const odd = {
  nan: NaN,
  infinite: Infinity,
  huge: 1e21,
  above64: 2 ** 63,
  safe: 2 ** 53,
  whole: 1.0,
  hole: ["a", null, "b"],
  surrogate: "a\ud800b",
  emoji: "\u{1f44b}",
};

const tracers = new NodeTracerProvider({
  resource,
  spanProcessors: [new BatchSpanProcessor(await exporter("trace", "OTLPTraceExporter"))],
});
const tracer = tracers.getTracer("scope", "1.2");
const parent = tracer.startSpan("parent", { kind: SpanKind.SERVER });
const child = tracer.startSpan("child", { attributes: odd, links: [{ context: parent.spanContext() }] });
child.addEvent("event", { n: 1 });
child.setStatus({ code: SpanStatusCode.ERROR, message: "broken" });
child.end();
parent.end();

const loggers = new LoggerProvider({
  resource,
  processors: [new BatchLogRecordProcessor({ exporter: await exporter("logs", "OTLPLogExporter") })],
});
loggers.getLogger("scope", "1.2").emit({
  severityNumber: SeverityNumber.WARN,
  severityText: "WARNING",
  body: { text: "hello wörld", bytes: new Uint8Array([1, 2]), nested: { list: [1, "two", null] } },
  attributes: odd,
});

const meters = new MeterProvider({
  resource,
  readers: [
    new PeriodicExportingMetricReader({
      exporter: await exporter("metrics", "OTLPMetricExporter"),
      exportIntervalMillis: 3_600_000,
    }),
  ],
});
const meter = meters.getMeter("scope", "1.2");
meter.createCounter("requests").add(3, { route: "/" });
meter.createHistogram("duration").record(0.25);

await Promise.all([tracers.shutdown(), loggers.shutdown(), meters.shutdown()]);
