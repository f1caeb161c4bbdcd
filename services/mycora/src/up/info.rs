//! Information that `/info` gives about an all-in-one.

use rpc::CallRate;
use service::ServiceLimits;
use storage::StorageQuotas;

use super::UpOptions;

/// The limits of all its services, with those that its flags set.
pub(super) fn limits(options: &UpOptions) -> ServiceLimits {
    let CallRate { per_sec, burst } = options.actor_calls;
    let mut limits: ServiceLimits = model::limits::TABLE.into_iter().chain(rpc::LIMITS).collect();
    limits.extend(StorageQuotas::with(&options.limits).named());
    limits.extend([
        ("actor_calls_per_sec", per_sec),
        ("actor_calls_burst", burst),
        ("redis_memory_bytes", options.redis_memory),
    ]);
    if options.saga.is_some() {
        limits.extend(saga::limits());
    }
    limits
}
