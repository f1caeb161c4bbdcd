//! Places where a service can be made to die.

/// Names a place where a service dies when a test asks for it: with the feature `crash-points`, and
/// `MYCORA_CRASH_AT=name:nth` in the environment. Without the feature it is nothing.
#[inline]
pub fn crash_point(name: &str) {
    #[cfg(feature = "crash-points")]
    testkit::crash::reached(name);
    #[cfg(not(feature = "crash-points"))]
    let _ = name;
}
