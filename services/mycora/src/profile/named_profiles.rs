//! Profiles by name in one file: each overrides settings of the rest of the file.

use std::path::Path;

use super::{Profile, ProfileError};

impl Profile {
    /// Returns the file's profile, with the settings that the profile of that name replaces.
    ///
    /// # Errors
    /// When there is none of that name, or it has profiles of its own.
    pub(super) fn chosen(mut self, path: &Path, name: Option<&str>) -> Result<Self, ProfileError> {
        let mut profiles = std::mem::take(&mut self.profiles);
        if let Some((name, _)) = profiles.iter().find(|(_, named)| !named.profiles.is_empty()) {
            let message = format!("[profiles.{name}] has profiles of its own; they stand side by side");
            return Err(ProfileError::Content { path: path.to_owned(), message });
        }
        let Some(name) = name else { return Ok(self) };
        match profiles.remove(name) {
            Some(named) => Ok(self.with(named)),
            None => Err(ProfileError::Name {
                path: path.to_owned(),
                name: name.to_owned(),
                names: profiles.into_keys().collect(),
            }),
        }
    }

    /// Certificate, key and actor belong together: another certificate is another identity.
    fn with(self, named: Self) -> Self {
        let is_somebody = named.cert.is_some() || named.signing_key.is_some() || named.actor != 0;
        let (cert, key) = if named.signing_key.is_some() && named.cert.is_none() {
            (None, None)
        } else {
            (named.cert.or(self.cert), named.key.or(self.key))
        };
        let mut addresses = self.addresses;
        if named.address.is_some() {
            // One address means all services, but for those that are named beside it.
            addresses = Default::default();
        }
        addresses.replace(named.addresses);
        Self {
            address: named.address.or(self.address),
            ca: named.ca.or(self.ca),
            cert,
            key,
            server_name: named.server_name.or(self.server_name),
            signing_key: named.signing_key.or(self.signing_key.filter(|_| !is_somebody)),
            trust_domain: named.trust_domain.or(self.trust_domain),
            context: if named.context == 0 { self.context } else { named.context },
            actor: if is_somebody { named.actor } else { self.actor },
            tenant: named.tenant.or(self.tenant),
            addresses,
            profiles: self.profiles,
        }
    }
}

/// Those that there are, for people.
pub(super) fn known(names: &[String]) -> String {
    match names {
        [] => "it has none by name, as in [profiles.admin]".to_owned(),
        names => format!("it has {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "address = \"https://h:1\"\nca = \"ca.pem\"\ncert = \"a.pem\"\nkey = \"a.key\"\nsigning_key = \"a.ed25519\"\n\
                        context = 1\nactor = 1\n[addresses]\nrouter = \"https://r:1\"\nstorage = \"https://s:1\"\n\
                        [profiles.admin]\ncert = \"admin.pem\"\nkey = \"admin.key\"\n\
                        [profiles.robot]\nsigning_key = \"robot.ed25519\"\nactor = 7\ncontext = 3\n\
                        [profiles.away]\naddress = \"https://away:1\"\n";

    fn profile(name: Option<&str>) -> Result<Profile, String> {
        let file: Profile = toml::from_str(FILE).expect("profiles");
        file.chosen(Path::new("client.toml"), name).map_err(|error| error.to_string())
    }

    #[test]
    fn a_named_profile_lists_only_its_differences() {
        let own = profile(None).expect("it is there");
        assert_eq!((own.cert, own.actor, own.context), (Some("a.pem".into()), 1, 1));
        let admin = profile(Some("admin")).expect("it is there");
        assert_eq!(admin.address.as_deref(), Some("https://h:1"));
        assert_eq!((admin.cert, admin.key), (Some("admin.pem".into()), Some("admin.key".into())));
        assert_eq!((admin.signing_key, admin.actor, admin.context), (None, 0, 1), "it is no actor");
        let robot = profile(Some("robot")).expect("it is there");
        assert!(robot.shows_tokens());
        assert_eq!((robot.signing_key, robot.actor, robot.context), (Some("robot.ed25519".into()), 7, 3));
        let away = profile(Some("away")).expect("it is there");
        assert_eq!((away.addresses, away.actor), (Default::default(), 1));
    }

    #[test]
    fn an_unknown_profile_is_refused_with_the_list_of_known_ones() {
        let text = profile(Some("root")).expect_err("no such profile");
        assert_eq!(text, "client.toml has no profile `root`; it has admin, away, robot");
        let nested: Profile = toml::from_str("[profiles.a.profiles.b]\nactor = 1\n").expect("TOML");
        let text = nested.chosen(Path::new("client.toml"), None).expect_err("nested").to_string();
        assert!(text.contains("[profiles.a] has profiles of its own"), "{text}");
    }
}
