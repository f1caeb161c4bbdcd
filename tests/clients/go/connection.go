package main

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

const tokenLife = time.Minute

// Profile is what a client.toml says. Its paths are relative to the file.
type Profile struct {
	Address    string
	Addresses  map[string]string
	CA         string
	Cert       string
	Key        string
	ServerName string `toml:"server_name"`
	Context    uint32
	Actor      uint32
	// The Ed25519 key that the actor is registered with, and for whom what it signs is. Empty: no tokens.
	SigningKey  string `toml:"signing_key"`
	TrustDomain string `toml:"trust_domain"`

	folder string
}

// LoadProfile reads a client.toml.
func LoadProfile(path string) (*Profile, error) {
	profile := &Profile{TrustDomain: "mycora", folder: filepath.Dir(path)}
	_, err := toml.DecodeFile(path, profile)
	return profile, err
}

func (p *Profile) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(p.folder, name)
}

// Dial gives a connection to the service of that name; `mycora up` has them all at one address.
func (p *Profile) Dial(service string, identity ...grpc.DialOption) (*grpc.ClientConn, error) {
	address := p.Address
	if own, ok := p.Addresses[service]; ok {
		address = own
	}
	return grpc.NewClient(strings.TrimPrefix(address, "https://"), identity...)
}

func (p *Profile) trust() (*tls.Config, error) {
	text, err := os.ReadFile(p.path(p.CA))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return &tls.Config{RootCAs: roots, ServerName: p.ServerName}, nil
}

// Nobody: only the server proves who it is.
func (p *Profile) Nobody() (grpc.DialOption, error) {
	config, err := p.trust()
	return grpc.WithTransportCredentials(credentials.NewTLS(config)), err
}

// WithCertificate is mutual TLS: the client certificate says which actor calls.
func (p *Profile) WithCertificate() (grpc.DialOption, error) {
	config, err := p.trust()
	if err != nil {
		return nil, err
	}
	certificate, err := tls.LoadX509KeyPair(p.path(p.Cert), p.path(p.Key))
	config.Certificates = []tls.Certificate{certificate}
	return grpc.WithTransportCredentials(credentials.NewTLS(config)), err
}

// Tokens are the actor's, to be shown with each call. There is no client certificate: they go beside Nobody.
func (p *Profile) Tokens() (Tokens, error) {
	text, err := os.ReadFile(p.path(p.SigningKey))
	if err != nil {
		return Tokens{}, err
	}
	key, err := jwt.ParseEdPrivateKeyFromPEM(text)
	if err != nil {
		return Tokens{}, err
	}
	own := key.(ed25519.PrivateKey)
	return Tokens{p.TrustDomain, p.Actor, own, Thumbprint(own)}, nil
}

// Thumbprint is what names a key in the tokens that it signs, after RFC 7638.
func Thumbprint(key ed25519.PrivateKey) string {
	x := base64.RawURLEncoding.EncodeToString(key.Public().(ed25519.PublicKey))
	hash := sha256.Sum256([]byte(fmt.Sprintf(`{"crv":"Ed25519","kty":"OKP","x":"%s"}`, x)))
	return base64.RawURLEncoding.EncodeToString(hash[:])
}

// Tokens are made for each call, and signed with the key that the actor is registered with.
type Tokens struct {
	TrustDomain string
	Actor       uint32
	Key         crypto.PrivateKey
	KeyID       string
}

// GetRequestMetadata makes a token.
func (t Tokens) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	now, audience := time.Now(), "spiffe://"+t.TrustDomain
	claims := jwt.MapClaims{
		"sub": fmt.Sprintf("%s/actor/%d", audience, t.Actor),
		"aud": audience,
		"iat": now.Unix(),
		"exp": now.Add(tokenLife).Unix(),
		"jti": uuid.NewString(),
	}
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims)
	token.Header["kid"] = t.KeyID
	signed, err := token.SignedString(t.Key)
	return map[string]string{"authorization": "Bearer " + signed}, err
}

// RequireTransportSecurity keeps tokens from connections that others can read.
func (Tokens) RequireTransportSecurity() bool { return true }
