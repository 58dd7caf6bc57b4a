//! `train --otlp-endpoint`: sends the same metrics to an OpenTelemetry collector.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use distribute_core::{Error, Result};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, MeterProvider as _};
use opentelemetry_otlp::{MetricExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use tokio::runtime::Runtime;

use super::{METRICS, Numbers};

/// Interval at which the metrics are sent.
const INTERVAL: Duration = Duration::from_secs(5);
/// Time limit for one export, including the last one at the end of the run.
const LIMIT: Duration = Duration::from_secs(3);

/// Sends the metrics until it is dropped, and then once more.
pub(super) struct Export {
    provider: SdkMeterProvider,
    /// The runtime whose thread drives the connection.
    _runtime: Runtime,
}

impl Export {
    /// Begins to send. If the collector does not answer, this is only logged.
    ///
    /// # Errors
    /// If the endpoint is not a URL, or no thread can be started.
    pub(super) fn start(endpoint: &str, numbers: &Arc<Numbers>) -> Result<Self> {
        let cannot = |error: &dyn fmt::Display| {
            Error::invalid(format!(
                "cannot export to --otlp-endpoint {endpoint} ({error}); give the URL of a \
                 collector's gRPC port, such as http://127.0.0.1:4317"
            ))
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("otlp")
            .enable_all()
            .build()
            .map_err(|error| cannot(&error))?;
        let inside = runtime.enter();
        let exporter = MetricExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .with_timeout(LIMIT)
            .build()
            .map_err(|error| cannot(&error))?;
        drop(inside);
        let reader = PeriodicReader::builder(exporter).with_interval(INTERVAL);
        let worker = KeyValue::new("service.instance.id", numbers.worker.to_string());
        let resource = Resource::builder().with_service_name("distribute");
        let provider = SdkMeterProvider::builder()
            .with_reader(reader.build())
            .with_resource(resource.with_attribute(worker).build())
            .build();
        instruments(&provider, numbers);
        Ok(Self {
            provider,
            _runtime: runtime,
        })
    }
}

/// Every metric, with the same name as for Prometheus.
fn instruments(provider: &SdkMeterProvider, numbers: &Arc<Numbers>) {
    let meter = provider.meter("distribute");
    for (index, (kind, name, help)) in METRICS.into_iter().enumerate() {
        let numbers = Arc::clone(numbers);
        let observe = move |observer: &dyn AsyncInstrument<f64>| {
            if let Some(value) = numbers.values()[index] {
                observer.observe(value, &[]);
            }
        };
        let name = format!("distribute_{name}");
        // The provider keeps both kinds.
        if kind == "counter" {
            let counter = meter.f64_observable_counter(name);
            counter
                .with_description(help)
                .with_callback(observe)
                .build();
        } else {
            let gauge = meter.f64_observable_gauge(name);
            gauge.with_description(help).with_callback(observe).build();
        }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // Sends the last metrics. Errors have been logged before.
        let _ = self.provider.shutdown_with_timeout(LIMIT);
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Export")
    }
}
