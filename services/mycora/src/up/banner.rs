//! What `mycora up` prints when it serves: lines to copy.

use super::directory::DataDir;
use super::redis::PrivateRedis;
use crate::profile::Profile;

pub(super) fn text(dir: &DataDir, redis: &PrivateRedis, profile: &Profile, port: u16) -> String {
    let file = |path: &Option<std::path::PathBuf>| {
        path.as_ref().map(|path| path.display().to_string()).unwrap_or_default()
    };
    let (ca, cert, key) = (file(&profile.ca), file(&profile.cert), file(&profile.key));
    let config = dir.join("client.toml");
    let config = config.display();
    format!(
        "mycora is ready on https://127.0.0.1:{port}, data in {data}\n\
         isolation: basic, scripts run with your rights\n\
         \n\
         command line  export MYCORA_CONFIG={config}\n\
         \x20             mycora flow submit FILE --watch\n\
         grpcurl       grpcurl -cacert {ca} -cert {cert} -key {key} localhost:{port} list\n\
         buf curl      buf curl --protocol grpc --cacert {ca} --cert {cert} --key {key} https://localhost:{port} --list-services\n\
         redis-cli     {redis}\n\
         \x20             (context 1; then HGETALL flow:1)\n",
        data = dir.path().display(),
        redis = redis.cli_line(dir, 1),
    )
}
