package realtest

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

const unlimited = -1

// Proxy stands between a client and a server and breaks their connections. The client must connect directly: the server would
// otherwise tell it its own address. A paused server ([Mongod.Pause]) is the other way to a half-open connection.
//
// It is our own, and small, since toxiproxy leaves goroutines behind when it limits bytes, which every leak check would find.
type Proxy struct {
	t        testing.TB
	upstream string
	addr     string
	running  sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while cut
	links    map[*link]bool
	silent   bool
	delay    time.Duration
	limit    int64 // bytes that a new connection carries from the server, or unlimited
}

// NewProxy starts a proxy to the server at upstream (host:port), which is stopped at cleanup.
func NewProxy(t testing.TB, upstream string) *Proxy {
	t.Helper()
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{t: t, upstream: upstream, addr: address(port), links: map[*link]bool{}, limit: unlimited}
	p.Heal()
	t.Cleanup(func() {
		p.Cut()
		p.running.Wait()
	})
	return p
}

// Addr is the proxy's host and port.
func (p *Proxy) Addr() string { return p.addr }

// URI connects through the proxy to a server without authentication.
func (p *Proxy) URI() string { return "mongodb://" + p.addr + "/?directConnection=true" }

// Cut closes all connections and refuses new ones.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	for l := range p.links {
		l.close()
	}
}

// Silence makes all connections half-open, new ones too: they stay, and what either side sends is lost.
func (p *Proxy) Silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = true
	for l := range p.links {
		l.broken = true
	}
}

// Drop closes each connection after the server has sent so many more bytes over it, new ones too.
func (p *Proxy) Drop(after int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = after
	for l := range p.links {
		l.left = after
	}
}

// Delay holds what the server sends for so long; what is under way already keeps its time.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Lead lets new connections go to another server, while the proxy is cut.
func (p *Proxy) Lead(upstream string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upstream = upstream
}

// Heal ends all that the other methods began. Connections that were silenced are closed: bytes are missing in them.
func (p *Proxy) Heal() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent, p.delay, p.limit = false, 0, unlimited
	for l := range p.links {
		l.left = unlimited
		if l.broken {
			l.close()
		}
	}
	if p.listener != nil {
		return
	}
	listener, err := net.Listen("tcp", p.addr)
	if err != nil {
		p.t.Fatalf("start proxy: %v", err)
	}
	p.listener = listener
	p.running.Go(func() { p.accept(listener) })
}

// accept takes connections until the listener is closed.
func (p *Proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.upstream)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.join(listener, &link{client: client, server: server, gone: make(chan struct{})})
	}
}

// join starts a link, unless the proxy was cut since its client was accepted.
func (p *Proxy) join(listener net.Listener, l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != listener {
		l.close()
		return
	}
	l.left, l.broken = p.limit, p.silent
	p.links[l] = true
	p.running.Go(func() {
		defer p.leave(l)
		var both sync.WaitGroup
		both.Go(func() { p.pump(l, l.client, l.server, p.passUp) })
		both.Go(func() { p.pump(l, l.server, l.client, p.passDown) })
		both.Wait()
	})
}

func (p *Proxy) leave(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// link is one connection of a client and the one to the server that belongs to it. The proxy's mutex guards left and broken.
type link struct {
	client, server net.Conn
	gone           chan struct{} // closed with the connections
	once           sync.Once
	left           int64 // bytes that the server may still send, or unlimited
	broken         bool  // bytes may be missing
}

func (l *link) close() {
	l.once.Do(func() {
		close(l.gone)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

// chunk is what one read brought, and when it may go on.
type chunk struct {
	data []byte
	due  time.Time
}

// pump carries bytes one way until either side closes. Reading and writing are apart, so that a delay holds back the bytes without
// slowing their flow.
func (p *Proxy) pump(l *link, from io.Reader, to io.Writer, pass func(*link, []byte) (chunk, bool)) {
	defer l.close()
	queue := make(chan chunk, 1024)
	var writing sync.WaitGroup
	defer writing.Wait()
	defer close(queue)
	writing.Go(func() {
		for c := range queue {
			l.deliver(to, c)
		}
	})
	for {
		buffer := make([]byte, 16<<10)
		n, err := from.Read(buffer)
		c, more := pass(l, buffer[:n])
		select {
		case queue <- c:
		case <-l.gone:
			return
		}
		if err != nil || !more {
			return
		}
	}
}

// deliver writes a chunk when it is due, unless the link is gone by then.
func (l *link) deliver(to io.Writer, c chunk) {
	timer := time.NewTimer(time.Until(c.due))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.gone:
		return
	}
	if _, err := to.Write(c.data); err != nil {
		l.close()
	}
}

// passUp returns what to hand to the server of what the client sent.
func (p *Proxy) passUp(_ *link, data []byte) (c chunk, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent {
		return chunk{}, true
	}
	return chunk{data: data}, true
}

// passDown returns what to hand to the client of what the server sent, and whether more may follow.
func (p *Proxy) passDown(l *link, data []byte) (c chunk, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent {
		return chunk{}, true
	}
	if l.left != unlimited {
		data = data[:min(int64(len(data)), l.left)]
		l.left -= int64(len(data))
	}
	return chunk{data: data, due: time.Now().Add(p.delay)}, l.left != 0
}
