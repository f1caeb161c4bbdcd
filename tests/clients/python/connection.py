"""Where a coordinator is, and as whom we speak to it: with a client certificate, or with tokens."""

import pathlib
import time
import tomllib
import uuid

import grpc
import jwt

TOKEN_LIFE_SECS = 60


class Profile:
    """What a client.toml says. Its paths are relative to the file."""

    def __init__(self, path):
        self.folder = pathlib.Path(path).parent
        content = tomllib.loads(pathlib.Path(path).read_text())
        self.ca, self.cert, self.key = (self.read(content[name]) for name in ("ca", "cert", "key"))
        self.address, self.addresses = content.get("address"), content.get("addresses", {})
        self.server_name = content.get("server_name")
        self.context, self.actor = content["context"], content["actor"]
        # The key that the actor is registered with, in PEM, and for whom what it signs is. Nothing: no tokens.
        self.signing_key = self.read(content["signing_key"]) if "signing_key" in content else None
        self.trust_domain = content.get("trust_domain", "mycora")

    def read(self, name):
        return (self.folder / name).read_bytes()

    def channel(self, service, credentials):
        """A channel to the service of that name; `mycora up` has them all at one address."""
        target = self.addresses.get(service, self.address).removeprefix("https://")
        options = [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []
        return grpc.secure_channel(target, credentials, options)


def nobody(profile):
    """Only the server proves who it is."""
    return grpc.ssl_channel_credentials(root_certificates=profile.ca)


def with_certificate(profile):
    """Mutual TLS: the client certificate says which actor calls."""
    return grpc.ssl_channel_credentials(profile.ca, private_key=profile.key, certificate_chain=profile.cert)


def with_tokens(profile, trust_domain=None):
    """No client certificate: a token with each call, signed with the key that the actor is registered with."""
    tokens = Tokens(trust_domain or profile.trust_domain, profile.actor, profile.signing_key)
    return grpc.composite_channel_credentials(nobody(profile), grpc.metadata_call_credentials(tokens))


class Tokens(grpc.AuthMetadataPlugin):
    """Makes a short-lived token for each call."""

    def __init__(self, trust_domain, actor, signing_key):
        self.audience = f"spiffe://{trust_domain}"
        self.subject = f"{self.audience}/actor/{actor}"
        self.signing_key = signing_key

    def token(self):
        now = int(time.time())
        claims = {"sub": self.subject, "aud": self.audience, "iat": now, "exp": now + TOKEN_LIFE_SECS}
        claims["jti"] = str(uuid.uuid4())
        return jwt.encode(claims, self.signing_key, algorithm="EdDSA")

    def __call__(self, _, callback):
        callback((("authorization", f"Bearer {self.token()}"),), None)
