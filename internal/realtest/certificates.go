package realtest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Certificates are the PEM files of an authority, of a server on 127.0.0.1 and of a client, both of which it has signed.
type Certificates struct {
	CAFile, CertFile, KeyFile string // CertFile and KeyFile are the client's

	serverFile string // key and certificate in one file, as Kafka reads them
}

// NewCertificates makes new ones in a directory, valid for a day. Called again for the same directory it replaces them.
func NewCertificates(dir string) (Certificates, error) {
	c := Certificates{
		CAFile:     filepath.Join(dir, "ca.pem"),
		CertFile:   filepath.Join(dir, "client.pem"),
		KeyFile:    filepath.Join(dir, "client.key"),
		serverFile: filepath.Join(dir, "server.pem"),
	}
	ca, err := newCertificate("driftless tests", nil)
	if err != nil {
		return c, err
	}
	server, err := newCertificate("127.0.0.1", ca)
	if err != nil {
		return c, err
	}
	client, err := newCertificate("driftless", ca)
	if err != nil {
		return c, err
	}
	for path, content := range map[string][]byte{
		c.CAFile: ca.cert, c.CertFile: client.cert, c.KeyFile: client.key,
		c.serverFile: bytes.Join([][]byte{server.key, server.cert, ca.cert}, nil),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return c, fmt.Errorf("write certificate: %w", err)
		}
	}
	return c, nil
}

// certificate is one with its key, parsed and as PEM.
type certificate struct {
	parsed    *x509.Certificate
	private   *ecdsa.PrivateKey
	cert, key []byte
}

// newCertificate makes one that the issuer signs, or an authority when there is no issuer.
func newCertificate(name string, issuer *certificate) (*certificate, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	c := &certificate{private: private}
	if issuer == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		issuer = &certificate{parsed: template, private: private}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuer.parsed, &private.PublicKey, issuer.private)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	if c.parsed, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("read back certificate: %w", err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	c.cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	c.key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	return c, nil
}
