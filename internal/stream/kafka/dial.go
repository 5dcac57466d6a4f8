package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"driftless/internal/config"
)

// keepAlive finds a peer that is gone while nothing is under way.
const keepAlive = 15 * time.Second

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// newDial returns what opens connections, with TLS where the options say so. The files are read once now, to find what is wrong
// with them, and then for each connection, so that a certificate that is renewed needs no restart.
func newDial(o Options) (dialFunc, error) {
	dial := o.Dial
	if dial == nil {
		dial = (&net.Dialer{KeepAlive: keepAlive}).DialContext
	}
	if o.TLS == (config.TLS{}) && !o.RequireTLS {
		return dial, nil
	}
	if _, err := loadTLS(o.TLS); err != nil {
		return nil, err
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		settings, err := loadTLS(o.TLS)
		if err != nil {
			return nil, fmt.Errorf("read certificates: %w", err)
		}
		if settings.ServerName, _, err = net.SplitHostPort(address); err != nil {
			return nil, err
		}
		plain, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		conn := tls.Client(plain, settings)
		if err := conn.HandshakeContext(ctx); err != nil {
			_ = plain.Close()
			return nil, fmt.Errorf("TLS with %s: %w", address, err)
		}
		return conn, nil
	}, nil
}

// loadTLS reads the files. Without a ca_file the system's authorities are believed.
func loadTLS(files config.TLS) (*tls.Config, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	if files.CAFile != "" {
		pem, err := os.ReadFile(files.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: ca_file %s holds no certificate in PEM", errCredentials, files.CAFile)
		}
	}
	if files.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("%w: cert_file and key_file: %w", errCredentials, err)
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	return settings, nil
}

// connections keeps track of those that are open. kafka-go leaves a connection open until the answer has come that nobody waits
// for any more.
type connections struct {
	dial dialFunc

	mu   sync.Mutex
	all  map[*connection]bool
	done bool
}

func (c *connections) open(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := c.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	tracked := &connection{Conn: conn, of: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	if c.all == nil {
		c.all = map[*connection]bool{}
	}
	c.all[tracked] = true
	return tracked, nil
}

// close closes all, and lets none be opened any more.
func (c *connections) close() {
	c.mu.Lock()
	c.done = true
	c.mu.Unlock()
	c.cut()
}

// cut closes those that are open.
func (c *connections) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.all {
		_ = conn.Conn.Close()
	}
}

// connection takes itself off the list when it is closed.
type connection struct {
	net.Conn
	of *connections
}

func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.all, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
