// Where a coordinator is, and as whom we speak to it: with a client certificate, or with tokens.

import { createHash, createPrivateKey, createPublicKey, randomUUID, sign } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { dirname, resolve } from 'node:path';

import grpc from '@grpc/grpc-js';
import { parse } from 'smol-toml';

const TOKEN_LIFE_SECS = 60;

/** What a client.toml says. Its paths are relative to the file. */
export class Profile {
  constructor(path) {
    this.folder = dirname(path);
    Object.assign(this, { addresses: {}, trust_domain: 'mycora' }, parse(readFileSync(path, 'utf8')));
  }

  read(name) {
    return readFileSync(resolve(this.folder, name));
  }

  /** A client of that service class, at the process of that name; `mycora up` has them all at one address. */
  client(Service, name, credentials) {
    const address = this.addresses[name] ?? this.address;
    const options = this.server_name ? { 'grpc.ssl_target_name_override': this.server_name } : {};
    return new Service(address.replace('https://', ''), credentials, options);
  }
}

/** Only the server proves who it is. */
export function nobody(profile) {
  return grpc.credentials.createSsl(profile.read(profile.ca));
}

/** Mutual TLS: the client certificate says which actor calls. */
export function withCertificate(profile) {
  const [ca, key, cert] = [profile.ca, profile.key, profile.cert].map((name) => profile.read(name));
  return grpc.credentials.createSsl(ca, key, cert);
}

/** No client certificate: a token with each call, signed with the key that the actor is registered with. */
export function withTokens(profile, { trustDomain = profile.trust_domain, kid } = {}) {
  const key = createPrivateKey(profile.read(profile.signing_key));
  kid ??= thumbprint(createPublicKey(key));
  const tokens = grpc.credentials.createFromMetadataGenerator((_, callback) => {
    const metadata = new grpc.Metadata();
    metadata.set('authorization', `Bearer ${token(trustDomain, profile.actor, key, kid)}`);
    callback(null, metadata);
  });
  return grpc.credentials.combineChannelCredentials(nobody(profile), tokens);
}

/** What names an Ed25519 key in the tokens that it signs, after RFC 7638. */
export function thumbprint(publicKey) {
  const { crv, kty, x } = publicKey.export({ format: 'jwk' });
  return createHash('sha256').update(JSON.stringify({ crv, kty, x })).digest('base64url');
}

/** A short-lived token: a compact JWS over who calls, whom, and until when. */
function token(trustDomain, actor, key, kid) {
  const [audience, now] = [`spiffe://${trustDomain}`, Math.floor(Date.now() / 1000)];
  const claims = {
    sub: `${audience}/actor/${actor}`,
    aud: audience,
    iat: now,
    exp: now + TOKEN_LIFE_SECS,
    jti: randomUUID(),
  };
  const encode = (part) => Buffer.from(JSON.stringify(part)).toString('base64url');
  const signed = `${encode({ alg: 'EdDSA', typ: 'JWT', kid })}.${encode(claims)}`;
  return `${signed}.${sign(null, Buffer.from(signed), key).toString('base64url')}`;
}
