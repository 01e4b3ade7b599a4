package channel_test

import (
	"context"
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/hccs"
)

// rank is an actor that posts one op.
type rank struct {
	name string
	link *channel.Channel
}

func (r *rank) Handle(op *channel.Op) error {
	op.Sink = r
	r.link.Post(op)
	return nil
}

func (r *rank) Complete(op *channel.Op) {
	fmt.Printf("%s: %v of %q, %v\n", r.name, op.Kind, op.Mem[0].Host, op.Err)
}

// Two ranks of one process, each with a channel to the other on a shard of its own.
func Example() {
	engine := hccs.NewEngine(1)
	driver, err := hccs.New(channel.Config{Job: "example", Engine: engine})
	if err != nil {
		fmt.Println(err)
		return
	}
	system := actor.NewSystem(actor.Config{})
	var refs [2]actor.Ref[*channel.Op]
	for i := range refs {
		shard := system.NewShard("shard")
		end, _ := driver.Open(kolo.Rank(i))      // hccs never refuses
		conn, _ := end.Connect(kolo.Rank(1 - i)) // nor here
		link, err := channel.Spawn(shard, "link", kolo.Rank(1-i), conn, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		refs[i], err = actor.Spawn[*channel.Op](shard, actor.Props{Name: "rank"}, &rank{name: kolo.Rank(i).String(), link: link})
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	key := channel.Key{Group: 1, Call: 7}
	send := &channel.Op{Kind: channel.Send, Key: key, Size: 5, Mem: []kolo.Memory{kolo.HostMemory([]byte("kolo!"))}}
	recv := &channel.Op{Kind: channel.Recv, Key: key, Size: 5, Mem: []kolo.Memory{kolo.HostMemory(make([]byte, 5))}}
	fmt.Println(refs[0].Tell(send), refs[1].Tell(recv))
	fmt.Println(system.Close(context.Background()), driver.Close())
	engine.Close()
	// Unordered output:
	// <nil> <nil>
	// rank 0: send of "kolo!", <nil>
	// rank 1: receive of "kolo!", <nil>
	// <nil> <nil>
}
