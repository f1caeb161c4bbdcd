//! Descriptions of the things that scripts may do where a layer is missing.

use crate::probe::IsolationSupport;
use addresses::inner_name_servers;

impl IsolationSupport {
    /// Names each layer that does not stand, with the reason and with what a script may do then.
    #[must_use]
    pub fn gaps(&self) -> Vec<String> {
        let gap = |layer: &str, why: &str| match self.consequence(layer) {
            Some(consequence) => format!("{layer}: {why}; {consequence}"),
            None => format!("{layer}: {why}"),
        };
        self.missing.iter().map(|missing| gap(missing.layer, &missing.why)).collect()
    }

    fn consequence(&self, layer: &str) -> Option<&'static str> {
        Some(match layer {
            "landlock" => "scripts reach every file that their user reaches",
            "scopes" => "scripts may signal other processes of their user",
            "seccomp" => "scripts reach the network and every call of the kernel that their user may make",
            "cgroup" if self.processes => {
                "memory is bounded for each process of a job, not for all of them together"
            }
            "cgroup" => "memory and processes of a job are not bounded together",
            "own-uid" => "the scripts of all contexts run as one user",
            "network" => {
                "jobs with `network: true` reach every port of this machine and its metadata service, and are refused when \
                 they demand to be confined"
            }
            // Files of others are out of reach of a user of its own.
            "attributes" if self.owner => return None,
            "attributes" => {
                "scripts may change modes, owners and times of all files of their user, its keys too"
            }
            "processes" if self.cgroup => return None,
            "processes" if self.owner => "jobs of one context share the bound on processes",
            "processes" => "jobs may have as many processes as their user",
            _ => return None,
        })
    }

    /// Names the name servers that jobs with the network cannot reach unless the policy lists them.
    #[must_use]
    pub fn unreached_name_servers(&self) -> Option<String> {
        let servers = if self.network { inner_name_servers() } else { Vec::new() };
        if servers.is_empty() {
            return None;
        }
        let name = |server: &std::net::IpAddr| match server {
            std::net::IpAddr::V4(server) => format!("\"{server}:53\""),
            std::net::IpAddr::V6(server) => format!("\"[{server}]:53\""),
        };
        let names: Vec<_> = servers.iter().map(name).collect();
        let names = names.join(", ");
        Some(format!(
            "the name servers of this machine are its own: jobs with `network: true` resolve names only where a policy \
             says addresses = [{names}]"
        ))
    }
}

#[cfg(test)]
mod tests {
    use model::Isolation;

    use super::*;
    use crate::probe::MissingLayer;

    #[test]
    fn a_gap_names_the_access_that_it_leaves_open() {
        let missing = |layer| MissingLayer { layer, why: "no reason".to_owned() };
        let mut support = IsolationSupport {
            level: Isolation::Basic,
            layers: Vec::new(),
            files: false,
            syscalls: false,
            cgroup: false,
            owner: false,
            network: false,
            attributes: false,
            processes: false,
            missing: vec![missing("attributes"), missing("network")],
        };
        let gaps = support.gaps();
        assert!(gaps[0].starts_with("attributes: no reason; scripts may change modes"), "{gaps:?}");
        assert!(gaps[1].contains("reach every port of this machine"), "{gaps:?}");
        assert_eq!(support.unreached_name_servers(), None, "every port is reached");
        support.owner = true;
        assert_eq!(support.gaps()[0], "attributes: no reason", "a user of its own has no files of ours");
    }
}
