// Sends one span whose id is all zeros, which no receiver may take.
// Usage: node bad_span.mjs <base URL>
import { diag, DiagLogLevel } from "@opentelemetry/api";
import { OTLPTraceExporter } from "@opentelemetry/exporter-trace-otlp-http";
import { BatchSpanProcessor, NodeTracerProvider } from "@opentelemetry/sdk-trace-node";

const say = (...words) => console.log("SDK:", ...words);
diag.setLogger({ error: say, warn: say, info() {}, debug() {}, verbose() {} }, DiagLogLevel.WARN);
const exporter = new OTLPTraceExporter({ url: `${process.argv[2]}/v1/traces` });
const idGenerator = { generateTraceId: () => "1".repeat(32), generateSpanId: () => "0".repeat(16) };
const provider = new NodeTracerProvider({ idGenerator, spanProcessors: [new BatchSpanProcessor(exporter)] });
provider.getTracer("scope").startSpan("bad").end();
await provider.shutdown();
