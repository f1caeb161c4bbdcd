//! The manifest of the demonstration: the example, with other places and less patience.

/// The one example of a manifest.
const EXAMPLE: &str = include_str!("../../../../../libs/workflow/src/manifest/example.yaml");
/// The flow that it has run for each label.
pub(super) const FLOW: &str = include_str!("../../../demo/make-label.yaml");

/// Replacements in the manifest: servers of this machine, with a certificate of an authority of their own, and three seconds to pay
/// instead of half an hour.
const CHANGES: &[(&str, &str)] = &[
    (
        "http: { base_url: \"https://pay.internal\", allow_hosts: [pay.internal], ",
        "http: { base_url: \"https://localhost:PAYMENTS\", allow_hosts: [\"localhost:PAYMENTS\"], private: true, \
         ca: \"secret:outside-ca\", ",
    ),
    (
        "smtp: { host: smtp.internal, port: 587, ",
        "smtp: { host: localhost, port: POSTPORT, private: true, ca: \"secret:outside-ca\", ",
    ),
    ("pay-by: { after: 30m, ", "pay-by: { after: 3s, "),
    ("compensate: not paid within 30 minutes", "compensate: not paid within 3 seconds"),
];

/// The manifest, for stand-ins at these ports.
pub(super) fn text(payments: u16, post: u16) -> String {
    let changed = CHANGES.iter().fold(EXAMPLE.to_owned(), |text, (from, to)| text.replace(from, to));
    changed.replace("PAYMENTS", &payments.to_string()).replace("POSTPORT", &post.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_contains_each_text_that_the_demo_replaces() {
        for (from, _) in CHANGES {
            assert_eq!(EXAMPLE.matches(from).count(), 1, "{from}");
        }
        let text = text(4001, 4002);
        assert!(text.contains("localhost:4001") && text.contains("port: 4002,"), "{text}");
        assert!(text.contains("method: POST, path"), "{text}");
        assert!(!text.contains("PAYMENTS") && !text.contains(".internal"), "{text}");
    }

    #[test]
    fn the_manifest_is_good() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("order-fulfilment.yaml"), text(4001, 4002)).expect("written");
        std::fs::write(dir.path().join("make-label.yaml"), FLOW).expect("written");
        let manifests = saga::manifests::Manifests::read(dir.path()).expect("it is good");
        assert_eq!(manifests.documents().len(), 4);
    }
}
