//! How the Redis at hand can keep contexts apart.

use keys::Layout;
use kv::{Cmd, Kv, KvConnection, SetupError};

/// Checks that the Redis at hand can keep contexts apart by this layout.
///
/// # Errors
/// Names what is missing for the layout.
pub(crate) async fn check(layout: Layout, kv: &Kv) -> Result<(), SetupError> {
    if !kv.endpoint().is_cluster() {
        let enabled = info(&kv.at(0, ""), "cluster", "cluster_enabled").await;
        return match enabled {
            Ok(Some(enabled)) if enabled == "1" => Err(SetupError::NotGiven(
                "this Redis is a node of a cluster: name it as redis+cluster://host:port, with the layout `hash-tag`"
                    .to_owned(),
            )),
            // `INFO` may be refused; a cluster then shows itself in every other answer.
            Ok(_) | Err(SetupError::Unknown(kv::Error::Refused { .. })) => Ok(()),
            Err(error) => Err(error),
        };
    }
    if layout == Layout::Database {
        return Err(SetupError::NotGiven(
            "a cluster has one database, so it cannot keep contexts apart by the layout `database`: choose `hash-tag`"
                .to_owned(),
        ));
    }
    match kv.primaries().await {
        Err(kv::Error::Refused { code, message }) => Err(SetupError::NotGiven(format!(
            "{} is no cluster that can be used: {code} {message}",
            kv.endpoint()
        ))),
        other => Ok(other.map(drop)?),
    }
}

async fn info(connection: &KvConnection, section: &str, name: &str) -> Result<Option<String>, SetupError> {
    let text = connection.cmd(Cmd::new("INFO").arg(section)).await?.text()?;
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    Ok(pairs.find(|(known, _)| *known == name).map(|(_, value)| value.trim().to_owned()))
}
