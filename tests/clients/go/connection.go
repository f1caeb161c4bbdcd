package main

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
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

// WithTokens shows a token with each call, and no client certificate: it goes beside Nobody.
func (p *Profile) WithTokens(trustDomain string) (grpc.DialOption, error) {
	text, err := os.ReadFile(p.path(p.SigningKey))
	if err != nil {
		return nil, err
	}
	key, err := jwt.ParseEdPrivateKeyFromPEM(text)
	return grpc.WithPerRPCCredentials(Tokens{trustDomain, p.Actor, key}), err
}

// Tokens are made for each call, and signed with the key that the actor is registered with.
type Tokens struct {
	TrustDomain string
	Actor       uint32
	Key         crypto.PrivateKey
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
	token, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims).SignedString(t.Key)
	return map[string]string{"authorization": "Bearer " + token}, err
}

// RequireTransportSecurity keeps tokens from connections that others can read.
func (Tokens) RequireTransportSecurity() bool { return true }
