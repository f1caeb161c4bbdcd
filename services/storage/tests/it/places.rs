//! Where scenarios are played: over one server in both layouts, over a cluster, over a master that Sentinels name.

use keys::Layout;
use storage::Config;
use testkit::{RedisCluster, RedisSentinels, RedisServer};

use crate::stage::Stage;

/// Something that storage can be over.
pub(crate) trait Redis {
    fn url(&self) -> String;

    /// Forgets everything.
    fn clear(&self);

    /// The server that has a key now.
    fn server_of(&self, key: &str) -> &RedisServer;
}

fn flush(server: &RedisServer) {
    let answer = server.raw(0, &["FLUSHALL"]);
    assert!(answer.starts_with("+OK"), "{answer}");
}

impl Redis for RedisServer {
    fn url(&self) -> String {
        self.url()
    }

    fn clear(&self) {
        flush(self);
    }

    fn server_of(&self, _: &str) -> &RedisServer {
        self
    }
}

impl Redis for RedisCluster {
    fn url(&self) -> String {
        self.url()
    }

    fn clear(&self) {
        let is_primary = |node: &&RedisServer| node.raw(0, &["ROLE"]).contains("master");
        self.nodes().iter().filter(is_primary).for_each(flush);
    }

    fn server_of(&self, key: &str) -> &RedisServer {
        &self.nodes()[self.primary_of(key)]
    }
}

impl Redis for RedisSentinels {
    fn url(&self) -> String {
        self.url()
    }

    fn clear(&self) {
        flush(self.server_of(""));
    }

    fn server_of(&self, _: &str) -> &RedisServer {
        &self.servers()[self.master()]
    }
}

impl<R: Redis> Redis for &R {
    fn url(&self) -> String {
        (*self).url()
    }

    fn clear(&self) {
        (*self).clear();
    }

    fn server_of(&self, key: &str) -> &RedisServer {
        (*self).server_of(key)
    }
}

/// A cluster in which no node is taken for dead because the machine is busy.
pub(crate) fn steady_cluster() -> RedisCluster {
    RedisCluster::of(&RedisServer::builder().config("cluster-node-timeout 5000"))
}

/// Plays a scenario over something that others were played over before.
pub(crate) async fn play<'a, R: Redis>(
    redis: &'a R,
    layout: Layout,
    (name, scenario): (&str, impl AsyncFnOnce(Stage<&'a R>)),
) {
    // Captured, and so read only with a failure.
    println!("{name}");
    redis.clear();
    let mut stage = Stage::with(redis, Config { layout, ..Config::default() }).await;
    let ended = stage.ended();
    scenario(stage).await;
    ended.await;
}

/// Makes tests of scenarios, each an `async fn(Stage<impl Redis>)`: one of each in both layouts, over a server of its own, and
/// one of all of them over a cluster, which takes a while to start; after `sentinels:` another one over a master that
/// Sentinels name.
macro_rules! scenarios {
    ($($name:ident),+ $(,)?) => {
        mod with_databases {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::stage::Stage::new(keys::Layout::Database).await).await;
            })+
        }

        mod with_hash_tags {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::stage::Stage::new(keys::Layout::HashTag).await).await;
            })+
        }

        #[tokio::test]
        async fn all_in_a_cluster() {
            let cluster = crate::places::steady_cluster();
            $(crate::places::play(&cluster, keys::Layout::HashTag, (stringify!($name), $name)).await;)+
        }
    };
    (sentinels: $($name:ident),+ $(,)?) => {
        crate::places::scenarios!($($name),+);

        #[tokio::test]
        async fn all_over_sentinels() {
            let sentinels = testkit::RedisSentinels::start();
            $(crate::places::play(&sentinels, keys::Layout::Database, (stringify!($name), $name)).await;)+
        }
    };
}

pub(crate) use scenarios;
