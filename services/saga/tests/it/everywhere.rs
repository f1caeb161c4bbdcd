//! One case on all stores and brokers.

/// Runs a case on a simulation, and on real servers with each store.
macro_rules! everywhere {
    ($($case:ident)*) => {
        mod in_memory {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case(super::World::simulated().await).await;
                }
            )*
        }

        mod in_a_directory {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case(super::World::in_a_directory().await).await;
                }
            )*
        }

        mod in_redis {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case(super::World::in_redis().await).await;
                }
            )*
        }
    };
}

pub(crate) use everywhere;
