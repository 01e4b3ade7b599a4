package actor_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/kolo-ccl/kolo/actor"
)

// deposit is a message. Messages are pointers.
type deposit struct{ amount int }

// account is an actor: its fields need no lock, since messages come one at a time.
type account struct{ balance int }

// Handle adds a deposit. An error ends the actor.
func (a *account) Handle(d *deposit) error {
	if d.amount < 0 {
		return errors.New("a deposit is not negative")
	}
	a.balance += d.amount
	fmt.Println("balance", a.balance)
	return nil
}

func Example() {
	s := actor.NewSystem(actor.Config{})
	ref, err := actor.Spawn[*deposit](s.NewShard("bank"), actor.Props{
		Name:   "account",
		OnExit: func(err error) { fmt.Println("ended:", err) },
	}, &account{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, amount := range []int{10, 5, -1, 7} {
		if err := ref.Tell(&deposit{amount}); err != nil {
			fmt.Println("not taken:", err)
		}
	}
	if err := s.Close(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// balance 10
	// balance 15
	// ended: a deposit is not negative
	// not taken: closed: actor account has ended: a deposit is not negative
}
