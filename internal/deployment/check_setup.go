package deployment

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"driftless/internal/stream"
)

const (
	subjectSetup = "collections and indexes"
	setupCommand = "incrementer setup"
)

// setup tells what setup would do and what it could not.
func (k *checker) setup(ctx context.Context) []Finding {
	if len(k.auth.Users) > 0 && len(k.auth.missing(Privileges(k.config, k.definitions, Look))) > 0 {
		return []Finding{{Warn, subjectSetup, "not known: the user may not look", "grant what is named above, then check again"}}
	}
	before, err := readPast(ctx, k.client, k.config.MongoDB.StateDatabase)
	if err != nil && !stream.HasCode(err, codeUnauthorized) {
		return []Finding{k.unseen(subjectSetup, err, Privilege{})}
	}
	steps, faults := plan(ctx, k.client, k.config, k.definitions, before)
	k.faults = faults
	findings := k.images(ctx, steps)
	for _, err := range parts(faults) {
		findings = append(findings, k.fault(err))
	}
	for _, step := range steps {
		findings = append(findings, k.step(step))
	}
	complete := !slices.ContainsFunc(steps, func(s Step) bool { return s.missing != follows })
	if complete && faults == nil {
		findings = append(findings, ok(subjectSetup, "all there"))
	}
	return findings
}

// images lists the sources whose images are on. The others have a step or a fault of their own.
func (k *checker) images(ctx context.Context, steps []Step) []Finding {
	var findings []Finding
	looking := planner{client: k.client}
	for _, s := range k.config.Sources {
		if s.ChangeStream == nil || k.hasFault("source "+s.Name) {
			continue
		}
		subject := imagesOf(s)
		rows := s.ChangeStream
		spec, err := looking.collection(ctx, rows.Database, rows.Collection)
		if err == nil && spec == nil { // of a source that was followed before
			findings = append(findings, Finding{Warn, "rows of " + s.Name, fmt.Sprintf("collection %s.%s does not exist: every count is 0 until it is made", rows.Database, rows.Collection),
				"create or restore it, then " + setupCommand})
			continue
		}
		if !slices.ContainsFunc(steps, func(step Step) bool { return step.subject == subject }) {
			findings = append(findings, ok(subject, "on"))
		}
	}
	return findings
}

// step is something that setup would do.
func (k *checker) step(s Step) Finding {
	f := Finding{Fail, s.subject, fmt.Sprintf("%s: %s", s.lacks, s.missing), setupCommand}
	if s.missing < follows || s.missing == follows && k.use != Follow {
		f.Level = Warn
	}
	if lacking := k.auth.missing([]Privilege{s.needs}); len(k.auth.Users) > 0 && len(lacking) > 0 {
		f.Fix += ", as a user who may " + inWords(lacking)
	}
	return f
}

// fault is something that setup could not do.
func (k *checker) fault(err error) Finding {
	fault, is := errors.AsType[*Fault](err)
	if !is {
		return Finding{Fail, subjectSetup, err.Error(), againLater}
	}
	return Finding{Fail, fault.Subject, fmt.Sprintf("%s (%s)", fault.Found, fault.Pos), fault.Fix}
}

// hasFault reports whether Plan refused a source or counter, or could not look.
func (k *checker) hasFault(subject string) bool {
	return slices.ContainsFunc(parts(k.faults), func(err error) bool {
		fault, is := errors.AsType[*Fault](err)
		return !is || fault.Subject == subject
	})
}

// parts are the errors that were joined.
func parts(joined error) []error {
	if several, is := joined.(interface{ Unwrap() []error }); is {
		return several.Unwrap()
	}
	if joined == nil {
		return nil
	}
	return []error{joined}
}
