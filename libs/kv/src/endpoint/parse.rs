//! URLs taken apart.

use super::{Credentials, EndpointError, KvEndpoint, RedisAddress, RedisLocation};

type Result<T> = std::result::Result<T, EndpointError>;

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

pub(super) fn endpoint(text: &str) -> Result<KvEndpoint> {
    if let Some(rest) = text.strip_prefix("redis://") {
        tcp(rest)
    } else if let Some(rest) = text.strip_prefix("redis+cluster://") {
        cluster(rest)
    } else if let Some(rest) = text.strip_prefix("redis+sentinel://") {
        sentinel(rest)
    } else if let Some(rest) = text.strip_prefix("unix://").or_else(|| text.strip_prefix("redis+unix://")) {
        unix(rest)
    } else if text.starts_with("rediss://") {
        Err(EndpointError::Tls)
    } else {
        Err(EndpointError::Scheme)
    }
}

fn tcp(rest: &str) -> Result<KvEndpoint> {
    let (credentials, rest) = authority(rest)?;
    let (place, database) = rest.split_once('/').unwrap_or((rest, ""));
    let place = RedisLocation::Tcp(address(place, REDIS_PORT)?);
    Ok(KvEndpoint { location: place, database: number(database)?, credentials })
}

fn cluster(rest: &str) -> Result<KvEndpoint> {
    let (credentials, rest) = authority(rest)?;
    let (nodes, path) = rest.split_once('/').unwrap_or((rest, ""));
    if !path.is_empty() {
        return Err(EndpointError::ClusterDatabase);
    }
    Ok(KvEndpoint {
        location: RedisLocation::Cluster(addresses(nodes, REDIS_PORT)?),
        database: 0,
        credentials,
    })
}

fn sentinel(rest: &str) -> Result<KvEndpoint> {
    let (credentials, rest) = authority(rest)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (sentinels, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (master, database) = path.split_once('/').unwrap_or((path, ""));
    if master.is_empty() {
        return Err(EndpointError::Master);
    }
    let mut sentinel_credentials = Credentials::default();
    for (name, value) in parameters(query) {
        match name {
            "sentinel_user" => sentinel_credentials.user = Some(unescape(value)?),
            "sentinel_pass" => sentinel_credentials.password = Some(unescape(value)?.into()),
            other => return Err(unknown(other)),
        }
    }
    let place = RedisLocation::Sentinel {
        sentinels: addresses(sentinels, SENTINEL_PORT)?,
        master: unescape(master)?,
        credentials: sentinel_credentials,
    };
    Ok(KvEndpoint { location: place, database: number(database)?, credentials })
}

fn unix(rest: &str) -> Result<KvEndpoint> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !path.starts_with('/') || path.len() < 2 {
        return Err(EndpointError::Path);
    }
    let mut endpoint = KvEndpoint::unix(unescape(path)?);
    for (name, value) in parameters(query) {
        match name {
            "db" => endpoint.database = number(value)?,
            "user" => endpoint.credentials.user = Some(unescape(value)?),
            "pass" => endpoint.credentials.password = Some(unescape(value)?.into()),
            other => return Err(unknown(other)),
        }
    }
    Ok(endpoint)
}

fn unknown(name: &str) -> EndpointError {
    EndpointError::Parameter(name.chars().take(40).collect())
}

fn parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let all = query.split('&').filter(|parameter| !parameter.is_empty());
    all.map(|parameter| parameter.split_once('=').unwrap_or((parameter, "")))
}

/// Credentials, and what stands behind them.
fn authority(rest: &str) -> Result<(Credentials, &str)> {
    let Some((credentials, rest)) = rest.rsplit_once('@') else { return Ok((Credentials::default(), rest)) };
    let (user, password) = match credentials.split_once(':') {
        Some((user, password)) => (unescape(user)?, Some(unescape(password)?.into())),
        None => (unescape(credentials)?, None),
    };
    Ok((Credentials { user: Some(user).filter(|user| !user.is_empty()), password }, rest))
}

fn addresses(list: &str, port: u16) -> Result<Vec<RedisAddress>> {
    list.split(',').map(|one| address(one, port)).collect()
}

pub(super) fn address(text: &str, default: u16) -> Result<RedisAddress> {
    let (host, port) = match text.strip_prefix('[') {
        Some(v6) => {
            let (host, port) = v6.split_once(']').ok_or(EndpointError::Host)?;
            let port =
                if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or(EndpointError::Port)?) };
            host.parse::<std::net::Ipv6Addr>().map_err(|_| EndpointError::Host)?;
            (host, port)
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() || host.contains(['/', '?', '#', ' ']) {
        return Err(EndpointError::Host);
    }
    let port = match port {
        None => default,
        Some(text) => text.parse().ok().filter(|port| *port != 0).ok_or(EndpointError::Port)?,
    };
    Ok(RedisAddress { host: host.to_owned(), port })
}

fn number(text: &str) -> Result<u32> {
    if text.is_empty() { Ok(0) } else { text.parse().map_err(|_| EndpointError::Database) }
}

fn unescape(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16)).ok_or(EndpointError::Escape);
        let value = digit()? * 16 + digit()?;
        bytes.push(u8::try_from(value).map_err(|_| EndpointError::Escape)?);
    }
    String::from_utf8(bytes).map_err(|_| EndpointError::Escape)
}
