package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/kolo-ccl/kolo"
)

// gather gives every process what each has to tell, by number. It goes by process 0, which
// waits for all and then tells all: two messages for each process. Between all pairs it
// would be thousands, which cost 64 processes on two cores half as much as all the rest of
// a join. Who has not told is known to process 0, and its error is that of all.
func (p *Process) gather(ctx context.Context, what string, mine []byte) ([][]byte, error) {
	if p.self != 0 {
		return p.tellFirst(ctx, what, mine)
	}
	ctx, cancel := context.WithTimeout(ctx, p.remaining(ctx, time.Second)) // so that the others hear who is missing
	defer cancel()
	all := make([][]byte, len(p.roster.Members))
	all[0] = mine
	links := p.everyLink()
	for q, l := range links {
		if l == nil {
			continue
		}
		select {
		case all[q] = <-l.tells:
		case err := <-p.failed:
			return nil, p.reason(err)
		case <-ctx.Done():
			return nil, p.late(ctx, "has not told "+what, func(x int) bool { return x > 0 && all[x] == nil && len(links[x].tells) == 0 })
		}
	}
	select {
	case err := <-p.failed: // one that has told may have given up since
		return nil, p.reason(err)
	default:
	}
	var b []byte
	for _, m := range all {
		b = appendMessage(b, m)
	}
	for _, l := range links {
		if l != nil {
			l.frame(frameTold, b)
		}
	}
	return all, nil
}

// tellFirst is gather where this is not process 0.
func (p *Process) tellFirst(ctx context.Context, what string, mine []byte) ([][]byte, error) {
	first := p.links[0].Load()
	first.frame(frameTell, mine)
	select {
	case b := <-first.told:
		all, err := messages(b)
		if err == nil && len(all) != len(p.roster.Members) {
			err = fmt.Errorf("%w: %d of %d processes have told %s", kolo.ErrArgument, len(all), len(p.roster.Members), what)
		}
		return all, err
	case err := <-p.failed:
		return nil, p.reason(err)
	case <-ctx.Done():
		return nil, p.late(ctx, "has not passed on what all tell "+what, func(x int) bool { return x == 0 })
	}
}

// remaining is the time that is left in a join for who does something so long behind it, where that
// is not much of it.
func (p *Process) remaining(ctx context.Context, behind time.Duration) time.Duration {
	end, _ := ctx.Deadline() // a join has one
	return time.Until(end) - min(p.cfg.Timeout/8, behind)
}

// exchange tells every process of this one's drivers and hears of theirs.
func (p *Process) exchange(ctx context.Context, m *channelMap, digest uint64) ([]intro, error) {
	addresses, err := m.addresses()
	if err != nil {
		return nil, err
	}
	mine := intro{Drivers: addresses, Topology: digest, Settings: p.cfg.settings()}
	all, err := p.gather(ctx, "of its drivers", encode(mine))
	if err != nil {
		return nil, err
	}
	told := make([]intro, len(all))
	for q, b := range all {
		t, who := &told[q], &p.roster.Members[q]
		if err := json.Unmarshal(b, t); err != nil {
			return nil, fmt.Errorf("%w: what %v tells of its drivers: %w", kolo.ErrArgument, who, err)
		}
		if t.Topology != digest {
			return nil, fmt.Errorf("%w: rank %s has another topology (digest %#x) than this process (%#x): give all processes one Config.Rank.Topology",
				kolo.ErrMismatch, kolo.RankList(who.Ranks), t.Topology, digest)
		} else if t.Settings != mine.Settings {
			return nil, fmt.Errorf("%w: rank %s runs with %s, and this process with %s", kolo.ErrMismatch, kolo.RankList(who.Ranks), t.Settings, mine.Settings)
		}
	}
	return told, nil
}

// barrier waits until all processes can be reached by all drivers.
func (p *Process) barrier(ctx context.Context) error {
	_, err := p.gather(ctx, "that it is ready", nil)
	return err
}
