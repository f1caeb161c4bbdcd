//! Metrics of when certificates end.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntGaugeVec, Opts};
use rpc::TlsFiles;

use crate::error_chain;

const EXPIRY: &str = "mycora_tls_certificate_expiry_seconds";
const EXPIRY_HELP: &str = "When the first certificate in the file ends, in seconds since 1970";
const FAILURES: &str = "mycora_tls_reload_failures_total";
const FAILURES_HELP: &str =
    "How often changed certificate files could not be used, and the former stayed in force";

/// Shows the ends of a process's certificates as the files say at that moment, and how often files that changed were
/// of no use.
pub struct CertificateMetrics {
    files: TlsFiles,
    descriptions: [Desc; 2],
}

impl CertificateMetrics {
    /// For these files, and those who serve and call with clones of them.
    #[must_use]
    pub fn of(files: &TlsFiles) -> Self {
        let describe = |name: &str, help: &str, labels: &[&str]| {
            let labels = labels.iter().map(|label| (*label).to_owned()).collect();
            Desc::new(name.to_owned(), help.to_owned(), labels, std::collections::HashMap::new())
                .expect("the name and the label are well formed")
        };
        let descriptions = [describe(EXPIRY, EXPIRY_HELP, &["file"]), describe(FAILURES, FAILURES_HELP, &[])];
        Self { files: files.clone(), descriptions }
    }
}

impl Collector for CertificateMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let ends = IntGaugeVec::new(Opts::new(EXPIRY, EXPIRY_HELP), &["file"]);
        let ends = ends.expect("the name and the label are well formed");
        for end in self.files.certificate_expiries() {
            match end.not_after {
                Ok(at) => ends
                    .with_label_values(&[&*end.file.to_string_lossy()])
                    .set(at.as_secs().try_into().unwrap_or(i64::MAX)),
                Err(error) => tracing::debug!("no end of a certificate: {}", error_chain(&error)),
            }
        }
        let failures = IntCounter::new(FAILURES, FAILURES_HELP).expect("the name is well formed");
        failures.inc_by(self.files.reload_failures());
        ends.collect().into_iter().chain(failures.collect()).collect()
    }
}
