"""Where a coordinator is, and as whom we speak to it: with a client certificate, or with tokens."""

import base64
import hashlib
import json
import pathlib
import time
import tomllib
import uuid

import grpc
import jwt
from cryptography.hazmat.primitives.serialization import load_pem_private_key

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


def with_tokens(profile, trust_domain=None, key_id=None):
    """No client certificate: a token with each call, signed with the key that the actor is registered with."""
    key = load_pem_private_key(profile.signing_key, password=None)
    tokens = Tokens(trust_domain or profile.trust_domain, profile.actor, key, key_id or thumbprint(key.public_key()))
    return grpc.composite_channel_credentials(nobody(profile), grpc.metadata_call_credentials(tokens))


def thumbprint(public_key):
    """What names an Ed25519 key in the tokens that it signs, after RFC 7638."""
    jwk = {"crv": "Ed25519", "kty": "OKP", "x": base64url(public_key.public_bytes_raw())}
    return base64url(hashlib.sha256(json.dumps(jwk, separators=(",", ":")).encode()).digest())


def base64url(content):
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class Tokens(grpc.AuthMetadataPlugin):
    """Makes a short-lived token for each call."""

    def __init__(self, trust_domain, actor, signing_key, key_id):
        self.audience = f"spiffe://{trust_domain}"
        self.subject = f"{self.audience}/actor/{actor}"
        self.signing_key, self.key_id = signing_key, key_id

    def token(self):
        now = int(time.time())
        claims = {"sub": self.subject, "aud": self.audience, "iat": now, "exp": now + TOKEN_LIFE_SECS}
        claims["jti"] = str(uuid.uuid4())
        return jwt.encode(claims, self.signing_key, algorithm="EdDSA", headers={"kid": self.key_id})

    def __call__(self, _, callback):
        callback((("authorization", f"Bearer {self.token()}"),), None)
