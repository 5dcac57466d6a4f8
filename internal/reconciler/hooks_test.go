package reconciler

import (
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/event"
)

// onCommand calls do before each command of that name is sent.
func onCommand(name string, do func()) func(*event.CommandStartedEvent) {
	return func(e *event.CommandStartedEvent) {
		if e.CommandName == name {
			do()
		}
	}
}

// once calls do before the first command that is wanted, and then never again, also not from within.
func once(wanted func(*event.CommandStartedEvent) bool, do func()) func(*event.CommandStartedEvent) {
	var mutex sync.Mutex
	done := false
	return func(e *event.CommandStartedEvent) {
		mutex.Lock()
		first := !done && wanted(e)
		done = done || first
		mutex.Unlock()
		if first {
			do()
		}
	}
}

// isOn reports whether a command is the named one on a collection.
func isOn(e *event.CommandStartedEvent, name, collection string) bool {
	on, ok := e.Command.Lookup(name).StringValueOK()
	return e.CommandName == name && ok && on == collection
}

// isUpdateOf reports whether a command is an update of a collection.
func isUpdateOf(collection string) func(*event.CommandStartedEvent) bool {
	return func(e *event.CommandStartedEvent) bool { return isOn(e, "update", collection) }
}

func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

func splitPath(path string) []string { return strings.Split(path, ".") }
