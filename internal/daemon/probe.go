package daemon

import (
	"context"
	"io"
	"net/http"
	"strings"
)

// Probe looks whether a program could listen on address. It reports true when one that runs there already answers as the
// same program, else a *ListenError when the address cannot be had.
func Probe(ctx context.Context, program, address string) (answered bool, err error) {
	listener, err := listen(ctx, program, address)
	if err == nil {
		return false, listener.Close()
	}
	if isProgram(ctx, program, address) {
		return true, nil
	}
	return false, err
}

// isProgram reports whether the program itself answers on address: by the title of its page.
func isProgram(ctx context.Context, program, address string) bool {
	target, err := pageURL(address, "/")
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, healthcheckLimit)
	defer cancel()
	response, err := page(ctx, target)
	if err != nil {
		return false
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	return err == nil && response.StatusCode == http.StatusOK && strings.Contains(string(body), "<title>"+program+"</title>")
}
