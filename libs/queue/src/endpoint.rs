//! Where the queues can be.

use kv::{EndpointError, KvEndpoint};

/// Why the queues cannot be where a URL says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueEndpointError {
    /// The text is not the URL of a Redis.
    #[error(transparent)]
    Malformed(EndpointError),
    /// Each change is one script over keys that a cluster puts in different slots.
    #[error(
        "the queues of a supervisor cannot be in a cluster, redis+cluster://, whose scripts see one slot: give it one \
         server of its own, redis:// or unix://, or one that Sentinels name, redis+sentinel://"
    )]
    Cluster,
}

/// Parses the URL of a supervisor's Redis.
///
/// # Errors
/// Says what about the URL cannot be.
pub fn parse_endpoint(url: &str) -> Result<KvEndpoint, QueueEndpointError> {
    let endpoint: KvEndpoint = url.parse().map_err(QueueEndpointError::Malformed)?;
    if endpoint.is_cluster() { Err(QueueEndpointError::Cluster) } else { Ok(endpoint) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_refused_by_name() {
        for url in ["redis://h:1/2", "unix:///redis.sock?db=3", "redis+sentinel://a:1,b:2/mine/4"] {
            assert!(parse_endpoint(url).is_ok(), "{url}");
        }
        assert_eq!(parse_endpoint("redis+cluster://a:1,b:2"), Err(QueueEndpointError::Cluster));
        assert_eq!(parse_endpoint("http://h"), Err(QueueEndpointError::Malformed(EndpointError::Scheme)));
    }
}
