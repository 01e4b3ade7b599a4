// Package launch starts one program as the processes of a world, here or on several
// hosts, and ends all of them when one fails.
package launch
